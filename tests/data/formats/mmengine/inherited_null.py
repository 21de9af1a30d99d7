_base_ = ['bases/schedule_null.py']
optim_wrapper = dict(clip_grad=dict(max_norm=1))
