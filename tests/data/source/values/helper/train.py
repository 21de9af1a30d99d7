import argparse
import lib

parser = argparse.ArgumentParser()
lib.add_args(parser)
args, rest = parser.parse_known_args()


def train(args):
    show(args.max_grad_norm)  # value 5.0: default of option --max_grad_norm


if __name__ == "__main__":
    train(args)
