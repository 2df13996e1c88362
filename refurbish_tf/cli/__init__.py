"""The command `refurbish-tf`. Each subcommand is a module with a function `run`.

refurbish-tf advise FOLDER
refurbish-tf demo
refurbish-tf info FOLDER
refurbish-tf store PATH --verify
refurbish-tf --version
"""
