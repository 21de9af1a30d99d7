"""The effect of one clip call: its parameters, its order among other calls, and the use of its result."""
