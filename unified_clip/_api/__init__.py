"""The public functions and classes, written once. Each namespace passes its framework's backend to them."""
