from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_float("clip", 0.1, "help")
LIMIT = flags.DEFINE_float("limit", default=3.0, help="help")

show(FLAGS.clip)  # value 0.1: default of option --clip
show(LIMIT.value)  # value 3.0: default of option --limit
