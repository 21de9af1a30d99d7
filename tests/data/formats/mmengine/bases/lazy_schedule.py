from mmengine.optim.optimizer import OptimWrapper
from torch.optim import AdamW

optim_wrapper = dict(type=OptimWrapper, optimizer=dict(type=AdamW, lr=0.0001), clip_grad=dict(max_norm=1))
