"""What a run can call, as programs and models find it."""
