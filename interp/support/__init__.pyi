from . import checks as checks, choices as choices, disk as disk, memory as memory, paths as paths, words as words
