"""`unified-clip config check`: compare every clip of a code base with one clip configuration."""
