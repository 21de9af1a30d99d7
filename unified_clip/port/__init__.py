"""Porting training code between frameworks, as far as clipping goes. Imports no framework."""
