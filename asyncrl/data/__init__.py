"""Published data as rows of asyncrl: files, hub repositories, columns, mixtures."""
