"""An atlas on the Hub: pushed as a dataset, pulled by strangers, asked where it lies; and several made one."""
