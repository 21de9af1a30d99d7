"""What each framework has to provide: one module or folder per framework, which imports no other framework."""
