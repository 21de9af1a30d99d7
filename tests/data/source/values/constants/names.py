from .config import CLIP as LIMIT
from .config import *
