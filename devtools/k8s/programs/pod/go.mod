module mcagent.test/pod

go 1.25.0
