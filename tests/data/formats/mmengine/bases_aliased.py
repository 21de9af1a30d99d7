_base_ = ['bases/schedule_clip.py']
clip = _base_.optim_wrapper.clip_grad
clip.update(max_norm=4)
