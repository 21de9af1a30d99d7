_base_ = ['bases/schedule_clip.py', 'bases/runtime.py']
model = dict(type='RetinaNet')
