"""Many runs: plans, and what is measured on saved runs."""
