import argparse


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("-c", "--clip-norm", type=float, default=5.0)
    parser.add_argument("--needed", type=float, required=True)
    parser.add_argument("--none", type=float)
    parser.add_argument("--moved", dest="there", type=float, default=-1)
    parser.add_argument("--set", type=float, default=1.0)
    args = parser.parse_args()
    args.set = 2.0
    return args


args = get_args()
show(args.clip_norm)  # value 5.0: default of option --clip-norm
show(args.needed)  # unknown: The option --needed has no default that is known.
show(args.none)  # value None: default of option --none
show(args.there)  # value -1: default of option --moved
show(args.set)  # unknown: args.set is also set in train.py:12.
show(args.absent)  # unknown: No file of the project defines the option absent.
show(other.clip_norm)  # unknown: The object other is not known.


class Trainer:
    def __init__(self, args):
        self.args = args
        self.clip = args.clip_norm

    def step(self):
        show(self.args.clip_norm)  # value 5.0: default of option --clip-norm
        show(self.clip)  # value 5.0: constant at train.py:29, default of option --clip-norm


Trainer(args).step()
