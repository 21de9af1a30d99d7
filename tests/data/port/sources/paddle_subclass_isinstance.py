import logging

import paddle
from paddle.nn import ClipGradByGlobalNorm, ClipGradByNorm
from paddle.nn.clip import ClipGradBase, _squared_l2_norm

logger = logging.getLogger(__name__)


class ClipGradByGlobalNormWithLog(paddle.nn.ClipGradByGlobalNorm):
    """As its parent, and logs each norm."""

    def __init__(self, clip_norm):
        super().__init__(clip_norm)

    @paddle.no_grad()
    def _dygraph_clip(self, params_grads):
        norms = []
        for i, (p, g) in enumerate(params_grads):
            if g is None or getattr(p, 'need_clip', True) is False:
                continue
            norms.append(_squared_l2_norm(g))
            if i < 10:
                logger.debug('%s: %.6f', p.name, float(norms[-1].sqrt()))
        return super()._dygraph_clip(params_grads)

    def __repr__(self):
        return f"{type(self).__name__}(global_clip_norm={self.clip_norm})"


class NoClip(ClipGradBase):
    def _dygraph_clip(self, params_grads):
        return params_grads


def describe(optimizer):
    clip = optimizer._grad_clip
    if isinstance(clip, ClipGradByGlobalNorm):
        return 'global', clip.clip_norm
    if clip is not None and issubclass(type(clip), (ClipGradByNorm, NoClip)):
        return 'tensor', clip.clip_norm
    return 'none', None
