_base_ = ['bases/schedule_clip.py']
del _base_.optim_wrapper.clip_grad
