"""Grading of mathematical answers: reading LaTeX, exact and high-precision comparison, all within fixed
budgets."""
