"""The public functions and classes. All frameworks share this code.

Each namespace passes the backend of its framework to the functions.
"""
