_base_ = 'bases/bad_type.py'
model = dict(type='RetinaNet')
