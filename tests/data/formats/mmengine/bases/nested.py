_base_ = ['./schedule_clip.py', './runtime.py']
optim_wrapper = dict(clip_grad=dict(max_norm=10))
