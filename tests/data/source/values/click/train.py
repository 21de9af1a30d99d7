import click


@click.command()
@click.option("--max-norm", default=1.0)
@click.option("--limit", "clip", default=4.0)
def main(max_norm, clip):
    show(max_norm)  # value 1.0: default of option --max-norm
    show(clip)  # value 4.0: default of option --limit
