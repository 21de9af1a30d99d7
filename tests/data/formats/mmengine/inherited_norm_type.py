_base_ = ['bases/schedule_clip.py']
optim_wrapper = dict(clip_grad=dict(norm_type=1))
