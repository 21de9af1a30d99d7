import os

TITLE = 'notes'
