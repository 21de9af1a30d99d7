class Base:
    limit = 1.0

    def __init__(self, clip=2.0):
        self.clip = clip


class Derived(Base):
    def __init__(self):
        super().__init__(5.0)


class Other:
    clip_norm = 1.0
    low = 1.0

    def __init__(self):
        self.twice = 1.0

    def set(self):
        self.twice = 2.0

    def step(self):
        show(self.clip_norm)  # value 1.0: default of field Other.clip_norm
        show(self.twice)  # unknown: Other.twice is set in several lines: 18 and 21.
        show(self.low)  # unknown: other.low is also set in train.py:35.
        show(self.absent)  # unknown: No line of the class Other sets absent.


def step(base: Base):
    show(base.clip)  # unknown: The class Derived derives from Base, and has its own __init__.
    show(base.limit)  # value 1.0: default of field Base.limit


other.low = 3.0
