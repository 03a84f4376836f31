module notices

go 1.19
