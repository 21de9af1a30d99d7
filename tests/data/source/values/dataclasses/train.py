from dataclasses import dataclass, field


@dataclass
class Optim:
    clip: float = field(default=0.5)


@dataclass
class Config:
    clip: float = 1.0
    optim: Optim = field(default_factory=Optim)
    eps: float = 1e-6


@dataclass
class Derived(Config):
    pass


config = Config(clip=2.0)


def train(cfg: Derived):
    show(cfg.clip)  # value 1.0: default of field Config.clip
    show(cfg.optim.clip)  # value 0.5: default of field Optim.clip


show(config.clip)  # value 2.0: only caller at train.py:21
show(config.eps)  # value 1e-06: default of field Config.eps
