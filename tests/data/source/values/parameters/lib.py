def train(model, clip, eps=1e-6):
    show(clip)  # value 0.25: only caller at main.py:5, constant at main.py:3
    show(eps)  # value 1e-06: default of parameter train(eps=)


def several(clip):
    show(clip)  # unknown: Calls pass different values for clip: main.py:6 and main.py:7.


def starred(clip):
    show(clip)  # unknown: main.py:8 passes *args, which may contain clip.


def spawned(rank, clip=1.0):
    show(clip)  # unknown: spawned is passed on in main.py:9, so other code may call it.


class Trainer:
    def __init__(self, clip=1.0, norm_type=2):
        self.clip = clip
        self.norm_type = norm_type

    def step(self, scale=2.0):
        show(self.clip)  # value 3.0: constant at lib.py:20, only caller at main.py:10
        show(self.norm_type)  # value 2: constant at lib.py:21, default of parameter __init__(norm_type=)
        show(scale)  # value 2.0: default of parameter step(scale=)


def partly(clip=3.0, eps=2.0):
    show(clip)  # unknown: Calls pass different values for clip: main.py:12 and main.py:13.
    show(eps)  # value 2.0: only caller at main.py:13, default of parameter partly(eps=)
