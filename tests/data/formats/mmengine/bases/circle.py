_base_ = '../circle.py'
