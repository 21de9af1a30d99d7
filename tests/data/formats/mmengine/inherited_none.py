_base_ = ['bases/schedule_1x.py', 'bases/runtime.py']
model = dict(type='RetinaNet')
