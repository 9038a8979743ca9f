"""What this machine is and what it was measured to do."""
