import tyro


class Args:
    clip: float = 0.5


args = tyro.cli(Args)
show(args.clip)  # value 0.5: default of field Args.clip
