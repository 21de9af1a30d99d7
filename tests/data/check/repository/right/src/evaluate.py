def accuracy(outputs, targets):
    return (outputs.argmax(-1) == targets).float().mean()
