"""TOML of parity suites with one list of gradients."""

from __future__ import annotations

from pathlib import Path

SUITE = Path(__file__).parents[3] / "parity"

GRADIENTS = '[[gradients]]\nname = "a"\ntensors = [{ values = [1.0] }]\n'

CASES = '[[cases]]\ngradients = ["a"]\ncalls = [{ call = "global_norm" }]\n'


def cases_toml(call: str, more: str = "") -> str:
    return f'{GRADIENTS}[[cases]]\ngradients = ["a"]\ncalls = [{call}]\n{more}'


NORM = "{ call = 'global_norm' }"

ONE_CASE = cases_toml(NORM)
