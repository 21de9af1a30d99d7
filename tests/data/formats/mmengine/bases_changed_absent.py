_base_ = ['bases/schedule_1x.py']
_base_.optim_wrapper.clip_grad.max_norm = 7
