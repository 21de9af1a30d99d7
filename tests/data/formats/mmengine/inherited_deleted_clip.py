_base_ = ['bases/schedule_clip.py']
optim_wrapper = dict(clip_grad=dict(_delete_=True, type='value', clip_value=0.5))
