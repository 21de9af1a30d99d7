"""The public functions and classes, written once.

Each namespace passes the backend of its framework to the functions.
"""
