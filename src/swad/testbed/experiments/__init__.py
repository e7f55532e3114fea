"""Many runs: plans, launchers, and what is measured on saved runs."""
