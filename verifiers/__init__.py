"""Rule-based rewards: a response and a reference in, a typed verdict out. No torch,
nothing imported at start. Part of asyncrl."""
