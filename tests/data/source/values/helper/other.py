import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--max_grad_norm", default=9.0, type=float)
