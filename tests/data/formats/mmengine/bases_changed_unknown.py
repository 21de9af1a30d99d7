_base_ = ['bases/schedule_clip.py']
for name in ('clip_grad', 'optimizer'):
    _base_.optim_wrapper.pop(name)
