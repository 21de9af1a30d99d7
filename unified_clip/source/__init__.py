"""Read Python source without running it, and edit it. Every tool that reads Python source uses this package.

project = Project(paths)                 # the files of a project; each file is parsed once
module = project.module(path)            # or Module(content) for code without a file, such as a notebook's cell
module.nodes, module.parents             # the `ast` tree, in the order of the text
module.full_name(node)                   # "torch.nn.utils.clip_grad_norm_", according to the imports of the file
project.full_name(module, node)          # also through re-exports and constants of the project's other files
project.definition(module, node)         # the function, class or value that a name stands for
project.calls_of(definition)             # all calls of a function or class in the project
values.value_of(project, module, node)   # the value, if the code fixes it, and how it was found

edits = Edits(module)
edits.replace(node, "code")              # edits are spans of the text: the rest of the file stays as it is
edits.insert_after(statement, "line")
edits.to_bytes()
"""
