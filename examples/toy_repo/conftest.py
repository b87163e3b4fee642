"""Its place here lets pytest find calc.py without an installation."""
