_base_ = ['bases/schedule_clip.py']
model = dict(type='RetinaNet')
_base_.optim_wrapper.clip_grad.max_norm = -1
