"""SGLang 0.5.23 over HTTP: every endpoint that asyncrl calls. No file outside this package names one.

Each call raises ServerError, which names the endpoint, when the server is gone, silent or refuses.
"""
