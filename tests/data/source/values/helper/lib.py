def add_args(parser):
    group = parser.add_argument_group("training")
    group.add_argument("--max_grad_norm", default=5.0, type=float)
