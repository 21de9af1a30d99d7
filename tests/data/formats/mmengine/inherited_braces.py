_base_ = ['bases/schedule_clip.py']
norm = {{_base_.clip.max_norm}}
optim_wrapper = dict(clip_grad=dict(max_norm=norm, norm_type={{ _base_.clip.norm_type }}))
