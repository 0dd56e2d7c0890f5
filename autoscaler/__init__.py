"""The slow loop: readings in, numbers of backends and homes of models out (Symphony 4.4, 4.7)."""
