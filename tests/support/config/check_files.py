"""Files to check with `unified-clip config check`, and the clip configuration for them."""

from __future__ import annotations

from collections.abc import Callable

from unified_clip.check.model import CheckReport, Finding

CLIP_CONFIG = 'rule = "global_norm"\nthreshold = 1.0\nfamily = "pytorch"\n'
DEEPSPEED = '{"zero_optimization": {"stage": 2}, "gradient_clipping": %s}\n'
TORCH = "import torch\n\ntorch.nn.utils.clip_grad_norm_(model.parameters(), %s)\n"
IGNORE = '\n[[check.ignore]]\npath = "{}"\nreason = "a sweep"\n'

Check = Callable[..., CheckReport]


def only_finding(report: CheckReport) -> Finding:
    (finding,) = report.findings
    return finding
