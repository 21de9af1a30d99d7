import math
import config
from config import HALF, LIMITS, CHANGED, B, CLIP as c
from names import LIMIT, C

TWICE = 1.0
TWICE = 2.0

config.CHANGED = 3.0
FILLED = []
FILLED.append(1.0)

show(2 * c)  # value 2.0: constant at config.py:1
show(-HALF)  # value -0.5: constant at config.py:2, constant at config.py:1
show(float("inf"))  # value inf: constant
show(math.inf)  # value inf: constant
show(config.CLIP)  # value 1.0: constant at config.py:1
show(LIMITS["clip"])  # value 5.0: constant
show(LIMIT)  # value 1.0: constant at config.py:1
show(B)  # value 2.0: constant at config.py:5
show(C)  # value 3: constant at config.py:5
show(TWICE)  # unknown: TWICE has several values, in lines 6 and 7.
show(CHANGED)  # unknown: config.CHANGED is also set in train.py:9.
show(compute())  # unknown: compute() is computed when the code runs.
show(absent)  # unknown: absent is defined nowhere in the file.
show(FILLED)  # unknown: FILLED is a list that code may change.
for each in (1.0, 2.0):
    show(each)  # unknown: each gets its value in a loop, a call or a definition.


def shadowed(HALF):
    show(HALF)  # unknown: No call in the project passes HALF of shadowed.


def local():
    c = 7.0
    show(c)  # value 7.0: constant at train.py:36
